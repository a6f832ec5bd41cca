"""`python -m glassformer` is the `glassformer` command."""

from glassformer.apps.cli.main import main

if __name__ == "__main__":
    main()
