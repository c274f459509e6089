"""Engines that run as a server of their own: started, watched and reliably stopped."""
