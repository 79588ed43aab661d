"""``python -m ebrl`` is ``ebrl``."""

from ebrl.cli.main import main

if __name__ == "__main__":
    main()
