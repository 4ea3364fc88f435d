"""For Prometheus and Grafana: the table of metrics, recording rules, dashboards and alerts."""
