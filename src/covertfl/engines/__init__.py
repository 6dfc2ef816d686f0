"""Who answers the queries besides simulated clients: `flower`, the engine on a Flower grid."""
