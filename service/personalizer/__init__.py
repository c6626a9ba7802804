"""The API of Azure AI Personalizer on top of the native service (docs/azure-personalizer.md)."""
