"""``python -m rag_middle``: the command line, where its script is not on the path."""

from rag_middle.cli import main

if __name__ == "__main__":
    main()
