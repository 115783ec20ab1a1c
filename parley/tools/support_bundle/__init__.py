"""``parley support-bundle``: an archive with everything needed to analyze a problem remotely, without secrets.

1. ``known_secrets`` finds the secrets that configurations contain, by the definitions of their keys.
2. ``masks`` removes these secrets, in every spelling, and everything else that looks like a secret, from every text.
3. ``contents`` creates the files from the doctor's snapshots; ``archive`` masks and writes all of them.
4. If a part cannot be collected, ``README.txt`` contains the reason, and the bundle contains the other parts.
"""
