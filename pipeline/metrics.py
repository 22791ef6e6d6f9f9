"""What is counted along the way of an image, in the words of Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

_STAGE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

DROPPED = Counter(
    "warmlane_dropped_total", "Requests dropped before a stage spent anything on them.", ["stage", "reason"]
)
STAGE_SECONDS = Histogram(
    "warmlane_stage_seconds", "Wall time of one image in a stage.", ["stage"], buckets=_STAGE_BUCKETS_S
)
OUTCOMES = Counter("warmlane_images_total", "Images answered, by gRPC status.", ["status"])
BATCH_FILL = Histogram(
    "warmlane_batch_fill", "Real images in a batch.", buckets=(1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)
)
RECOMPILES = Counter("warmlane_recompiles_total", "Compilations and graph breaks after warm-up; each is a bug.")
SLOTS_IN_USE = Gauge("warmlane_slots_in_use", "Slots that hold an image on its way.")
