"""ENGINE: requests, the scheduler, the prefix caches, and the loop that runs them."""
