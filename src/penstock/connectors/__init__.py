"""Sources and sinks: the contracts that users implement, and the connectors that come with Penstock."""
