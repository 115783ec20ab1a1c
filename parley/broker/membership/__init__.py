"""Which brokers are alive: each broker's own membership, and the controller's view of all of them.

A broker's side: ``lifecycle`` keeps the session with the coordination store, ``broker_state`` defines the states of the
membership, ``joining`` joins the group of brokers, ``controlled_shutdown`` leaves it cleanly,
``controller_follower`` pulls metadata from the controller, ``controller_silence`` measures how long the controller has
not responded, ``identity`` determines the ids of the broker and the cluster, ``known_stores`` records which store the
data belongs to.

The controller's side: ``broker_fencing`` registers and fences brokers. Both sides use ``dead_process_detection``, which
detects that the process of another broker has ended.
"""
