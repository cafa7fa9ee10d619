"""Finds, replaces and restores the layers of whole models."""
