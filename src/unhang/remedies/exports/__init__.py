"""Chosen settings in every launcher's own form: `forms` lists them, each with one template; `checking` reads them back."""
