"""The arguments that these programs share."""
import argparse
import pathlib


def absolute_path(text):
    return pathlib.Path(text).resolve()


def parser(description):
    """A parser of `STRATUS FOLDER`, as absolute paths."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("program", type=absolute_path, help="the program stratus")
    made.add_argument("folder", type=absolute_path, help="where runs are made")
    return made
