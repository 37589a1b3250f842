"""Work that is cut into parts, done one after the other on this machine or by the machines of a Ray cluster.

    storage      files on this machine or in a bucket, by one interface
    parts        an input cut into parts: some pictures, or one archive
    shards       vectors in Parquet: one file for each part, and what says that all are there
    runners      who does the parts: this process, or a cluster
    ray          a Ray cluster; nothing else here imports it
    embedding    ``recap embed``: parts to shards of vectors; ``recap score``: an encoder whose work is done in parts
    repetitions  which pictures and captions came before
    fitting      ``recap fit``: its input to shards of vectors, to a map and a datastore, to a captioner
    captioning   ``recap caption``: pictures to captions, in parts

A part does not depend on the others, and doing it twice does no harm: that is why a lost machine costs what it was
working on and nothing else.
"""

from __future__ import annotations
