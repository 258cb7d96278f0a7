"""Private fast paths behind `ops`; they never import `functional`."""
