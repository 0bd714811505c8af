"""Compiled components: sources fetched and checked, a builder image, compiles without network, wheels kept by key."""
