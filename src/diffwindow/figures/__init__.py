"""Arrays in, pictures out: attention maps, learning curves and gains."""
