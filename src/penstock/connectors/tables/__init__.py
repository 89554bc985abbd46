"""Parts that the connectors of tables share: arguments, schemas, and the data files that writers stage."""
