"""Tests of minikv; the folders mirror the package."""
