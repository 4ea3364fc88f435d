"""Families of models: for each kind of architecture, the rules that turn its config into layers."""
