"""How a pipeline is described: streams, operators, and the logical graph that they make."""
