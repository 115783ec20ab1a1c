"""The Fetch API: planning (``plan``), reading (``read``), waiting (``pending_fetch``), and building the response
(``render``)."""
