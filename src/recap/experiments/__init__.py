"""The paper as commands: each experiment prints its table, with the paper's numbers beside it, and draws its figure."""

from recap.experiments.base import EXPERIMENTS, Outcome, Setup, run_experiment, write_outcome
from recap.experiments.table import Cell, Column, Row, Section, Table

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Column",
    "Outcome",
    "Row",
    "Section",
    "Setup",
    "Table",
    "run_experiment",
    "write_outcome",
]
