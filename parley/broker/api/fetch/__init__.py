"""The Fetch API: a plan for each partition (``plan``), reading (``read``), the response (``render``), and waiting."""
