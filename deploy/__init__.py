"""Files for deploying Penstock; `make generated-files` writes those about metrics from the metrics' definitions."""
