"""The Grafana dashboard over `/metrics` of one server or of several, as a table of panels."""

# Title, unit of Grafana, and queries with their legends.
PANELS = [
    ("Tokens per second", "short", [
        ("sum by (model_name) (rate(ixc:tokens_predicted_total[1m]))", "{{model_name}}: generated"),
        ("sum by (model_name) (rate(ixc:prompt_tokens_total[1m]))", "{{model_name}}: prompt"),
        ("sum by (model_name) (rate(ixc:prompt_tokens_cached_total[1m]))", "{{model_name}}: prompt, cached"),
    ]),
    ("Requests", "short", [
        ("sum by (model_name) (ixc:requests_processing)", "{{model_name}}: processing"),
        ("sum by (model_name) (ixc:requests_deferred)", "{{model_name}}: waiting"),
    ]),
    ("Ended requests per second", "short", [
        ("sum by (finished_reason) (rate(ixc:request_success_total[1m]))", "{{finished_reason}}"),
    ]),
    ("Time to first token", "s", [
        ("histogram_quantile(0.5, sum by (le) (rate(ixc:time_to_first_token_seconds_bucket[5m])))", "median"),
        ("histogram_quantile(0.95, sum by (le) (rate(ixc:time_to_first_token_seconds_bucket[5m])))", "95 %"),
    ]),
    ("Time between tokens", "s", [
        ("histogram_quantile(0.5, sum by (le) (rate(ixc:inter_token_latency_seconds_bucket[5m])))", "median"),
        ("histogram_quantile(0.95, sum by (le) (rate(ixc:inter_token_latency_seconds_bucket[5m])))", "95 %"),
    ]),
    ("Time of a request", "s", [
        ("histogram_quantile(0.5, sum by (le) (rate(ixc:e2e_request_latency_seconds_bucket[5m])))", "median"),
        ("histogram_quantile(0.95, sum by (le) (rate(ixc:e2e_request_latency_seconds_bucket[5m])))", "95 %"),
        ("histogram_quantile(0.95, sum by (le) (rate(ixc:request_queue_time_seconds_bucket[5m])))", "95 %, in the queue"),
    ]),
    ("Rows per step", "short", [
        ("sum by (model_name) (rate(ixc:n_rows_total[1m])) / sum by (model_name) (rate(ixc:n_decode_total[1m]))", "{{model_name}}: rows"),
        ("avg by (model_name) (ixc:n_busy_slots_per_decode)", "{{model_name}}: sequences, on average"),
    ]),
    ("Positions in use", "percentunit", [
        ("ixc:kv_cache_usage_perc", "{{instance}} {{model_name}}"),
    ]),
    ("Memory of sequences and prompts", "bytes", [
        ("ixc:states_bytes", "{{instance}} {{model_name}}: sequences"),
        ("ixc:states_saved_bytes", "{{instance}} {{model_name}}: saved by sharing"),
        ("ixc:prompt_cache_memory_bytes", "{{instance}} {{model_name}}: prompt cache, memory"),
        ("ixc:prompt_cache_folder_bytes", "{{instance}} {{model_name}}: prompt cache, folder"),
    ]),
    ("Accepted drafts", "percentunit", [
        ("sum by (model_name) (rate(ixc:spec_decode_num_accepted_tokens_total[1m])) / sum by (model_name) (rate(ixc:spec_decode_num_draft_tokens_total[1m]))", "{{model_name}}"),
    ]),
    ("Streamed experts", "short", [
        ("sum by (model_name) (rate(ixc:expert_hits_total[1m]))", "{{model_name}}: in memory"),
        ("sum by (model_name) (rate(ixc:expert_late_total[1m]))", "{{model_name}}: being read"),
        ("sum by (model_name) (rate(ixc:expert_misses_total[1m]))", "{{model_name}}: missed"),
    ]),
    ("Drive", "Bps", [
        ("rate(ixc:drive_read_bytes_total[1m])", "{{instance}} {{model_name}}: read"),
    ]),
    ("Requests by replica", "short", [
        ("sum by (instance) (ixc:requests_processing)", "{{instance}}: processing"),
        ("sum by (instance) (ixc:requests_deferred)", "{{instance}}: waiting"),
    ]),
    ("Cached part of prompts by replica", "percentunit", [
        ("sum by (instance) (rate(ixc:prompt_tokens_cached_total[5m])) / (sum by (instance) (rate(ixc:prompt_tokens_cached_total[5m])) + sum by (instance) (rate(ixc:prompt_tokens_total[5m])))", "{{instance}}"),
    ]),
    ("Failed requests per second by replica", "short", [
        ("sum by (instance) (rate(ixc:requests_failed_total[1m]))", "{{instance}}"),
    ]),
]

COLUMNS, HEIGHT, GRID = 3, 8, 24


def dashboard() -> dict:
    """Returns the dashboard in Grafana's form."""
    source = {"type": "prometheus", "uid": "${source}"}
    width = GRID // COLUMNS
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {
                "x": number % COLUMNS * width,
                "y": number // COLUMNS * HEIGHT,
                "w": width,
                "h": HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
            "targets": [
                {"refId": chr(ord("A") + at), "datasource": source, "expr": query, "legendFormat": legend}
                for at, (query, legend) in enumerate(queries)
            ],
        }
        for number, (title, unit, queries) in enumerate(PANELS)
    ]
    choice = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "ixc",
        "title": "ixc",
        "tags": ["ixc"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [choice]},
        "panels": panels,
    }
