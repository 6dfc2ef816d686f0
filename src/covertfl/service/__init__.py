"""The service that retrains a model covertly, and the page on which an operator watches it."""
