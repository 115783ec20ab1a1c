"""``parley support-bundle``: one archive with what is needed to understand a problem from afar, without secrets.

1. ``known_secrets`` finds the secrets that configurations contain: by the definitions of their keys.
2. ``masks`` removes them from every text, in every spelling, and also what merely looks like a secret.
3. ``contents`` makes the files from the doctor's snapshots; ``archive`` masks and writes all of them.
4. A part that cannot be had is listed in ``README.txt`` with the reason; the others are there.
"""
