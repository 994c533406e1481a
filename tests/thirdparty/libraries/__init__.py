"""One file per library: ``module()`` returns a LightningModule and ``loader()`` a DataLoader with synthetic data."""
