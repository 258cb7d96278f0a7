"""What builds the documentation site: pages from the code, the build, and its checks."""
