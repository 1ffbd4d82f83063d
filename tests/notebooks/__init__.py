"""What every notebook must keep to, and proof that these checks bite."""
