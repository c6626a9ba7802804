"""The processes of ``fedres serve``: a supervisor, and below it rankers, a log writer and a learner."""
