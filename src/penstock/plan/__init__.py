"""From the logical graph to the physical plan: chains, subtasks, channels, workers."""
