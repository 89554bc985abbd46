"""What can be seen of a pipeline: one that runs in this process, or one of which a directory is left."""
