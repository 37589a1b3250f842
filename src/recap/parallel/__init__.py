"""Work that is cut into parts, done one after the other on this machine or by the machines of a Ray cluster.

    storage      files on this machine or in a bucket, by one interface
    parts        an input cut into parts: some pictures, or one archive
    runners      who does the parts: this process, or a Ray cluster

A part does not depend on the others, and doing it twice does no harm: that is why a lost machine costs what it was
working on and nothing else.
"""

from __future__ import annotations
