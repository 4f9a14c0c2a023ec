"""``rrcm`` in a checkout."""

from rrcm.__main__ import main

if __name__ == "__main__":
    main()
