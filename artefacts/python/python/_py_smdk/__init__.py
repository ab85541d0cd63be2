"""An alias of `py_smdk` under the name of SMDK's extension module."""

from py_smdk import *  # noqa: F403
from py_smdk import __all__ as __all__
