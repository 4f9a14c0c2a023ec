"""``rrcm`` in a checkout."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
