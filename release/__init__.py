"""What is done for a release: building and checking what is published (`make dist`), and trying versions (`make
versions`)."""
