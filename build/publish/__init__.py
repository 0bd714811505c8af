"""Publishing: finished images to a registry or an archive, compiled components to a registry by their key."""
