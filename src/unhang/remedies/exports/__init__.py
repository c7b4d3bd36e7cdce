"""Chosen settings in every launcher's own form: one module and one template for each. `forms` lists them, `checking` reads them back."""
