"""What `minikv.lab.sabotage` can switch off, one file for each part of the cache that is broken."""
