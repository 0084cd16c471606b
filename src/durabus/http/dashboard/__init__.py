"""The dashboard: pages rendered here, one script, one stylesheet, nothing from elsewhere."""
