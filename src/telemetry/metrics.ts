/**
 * Prometheus instruments. Every service makes its own registry and names its series `luftpause_…` with bounded labels:
 * never an id, a path or a model name that a client chose.
 */
export { Counter, Gauge, Histogram, Registry } from "prom-client";
