"""The Fetch API: planning (``plan``), reading (``read``), rendering the response (``render``), and waiting
(``waiting``)."""
