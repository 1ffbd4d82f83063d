"""The lab: what is looked at and tried out. Nothing in the core imports it."""
