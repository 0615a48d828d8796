//! Rows of regions, events and gauges.

use super::{
    Closing, Span,
    tables::{
        GAUGE, GaugeKey, GaugeRow, PERF, REGION, RegionEventRow, RegionKey, RegionRow, USAGE,
        UsageKey,
    },
    usage::RegionUsageRow,
};
use crate::{
    marks::{Mark, Op},
    schema::{Batch, Label, TableBuilder, Timestamp},
    tasks::process_tree::ProcessKey,
};

/// Builders of the tables.
pub(super) struct Rows {
    regions: TableBuilder<RegionKey, RegionRow>,
    usage: TableBuilder<UsageKey, RegionUsageRow>,
    events: TableBuilder<UsageKey, RegionEventRow>,
    gauges: TableBuilder<GaugeKey, GaugeRow>,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self {
            regions: TableBuilder::new(&REGION),
            usage: TableBuilder::new(&USAGE),
            events: TableBuilder::new(&PERF),
            gauges: TableBuilder::new(&GAUGE),
        }
    }

    /// Ends the batches.
    pub(super) fn finish(&mut self, out: &mut Vec<Batch>) {
        self.regions.finish(out);
        self.usage.finish(out);
        self.events.finish(out);
        self.gauges.finish(out);
    }

    /// Adds the row of a region, phase or event; `ts` is that of the reading.
    pub(super) fn push_region(
        &mut self,
        ts: Timestamp,
        process: ProcessKey,
        mark: &Mark,
        span: &Span,
    ) {
        let length = span.start.zip(span.end).map(|(start, end)| end - start);
        self.regions.push(
            RegionKey {
                ts,
                interval_ns: length.and_then(|ns| u64::try_from(ns).ok()),
                pid: process.0,
                start_ts: Timestamp::from_us(process.1),
                region_id: span.number,
            },
            RegionRow {
                name: label(mark.name.as_ref()),
                op: match mark.op {
                    Op::Phase => "phase",
                    Op::Event => "event",
                    Op::Start | Op::End | Op::Gauge => "region",
                }
                .into(),
                kind: label(mark.kind.as_ref()),
                user_id: mark.id.clone(),
                user_parent_id: mark.parent.clone(),
                parent_region_id: span.parent,
                group: label(mark.group.as_ref()),
                status: label(mark.status.as_ref()),
                region_start_ts: span.start.map(Timestamp::from_ns),
                region_end_ts: span.end.map(Timestamp::from_ns),
                attributes: attributes(mark),
                used: json(mark.used.as_ref()),
                generated: json(mark.generated.as_ref()),
                tags: json(mark.tags.as_ref()),
            },
        );
    }

    /// Adds the row of a gauge; `ts` is the time of the mark, `parent` the number of its region.
    pub(super) fn push_gauge(
        &mut self,
        ts: Timestamp,
        process: ProcessKey,
        mark: &Mark,
        parent: Option<u64>,
    ) {
        self.gauges.push(
            GaugeKey {
                ts,
                pid: process.0,
                start_ts: Timestamp::from_us(process.1),
            },
            GaugeRow {
                name: label(mark.name.as_ref()),
                value: mark.value.unwrap_or(f64::NAN),
                unit: label(mark.unit.as_ref()),
                kind: label(mark.kind.as_ref()),
                group: label(mark.group.as_ref()),
                user_parent_id: mark.parent.clone(),
                parent_region_id: parent,
                attributes: attributes(mark),
                tags: json(mark.tags.as_ref()),
            },
        );
    }

    /// Adds the rows of the resources used during a region.
    pub(super) fn push_usage(&mut self, closing: &Closing) {
        let Closing {
            process,
            open,
            end,
            to,
        } = closing;
        let from = &open.from;
        let interval_ns = u64::try_from(to.ts - from.ts).ok().filter(|ns| *ns != 0);
        let key = UsageKey {
            ts: Timestamp::from_ns(to.ts),
            interval_ns,
            pid: process.0,
            start_ts: Timestamp::from_us(process.1),
            region_id: open.number,
        };
        let name = label(open.mark.name.as_ref());
        let offsets = [from.ts - open.start, to.ts - end];
        // Readings that are further away than the region is long are about other things.
        let away = offsets[0].unsigned_abs() + offsets[1].unsigned_abs();
        let length = end.saturating_sub(open.start);
        let is_measured = interval_ns.is_some() && away <= length.unsigned_abs();
        let values = to.sums().since(&from.sums());
        let values = values.map(|value| value.filter(|_| is_measured));
        self.usage.push(
            key.clone(),
            RegionUsageRow::new(name.clone(), offsets, values),
        );
        for (event, counts) in to.events.iter().filter(|_| is_measured) {
            let counts = counts.since(&from.events.get(event).copied().unwrap_or_default());
            let (pmu, group, event) = event.clone();
            self.events.push(
                key.clone(),
                RegionEventRow {
                    name: name.clone(),
                    pmu: pmu.into(),
                    group: group.map(Into::into),
                    event: event.into(),
                    count: (counts.unknown == 0).then_some(counts.value),
                    count_raw: counts.raw,
                    enabled_ns: counts.enabled_ns,
                    running_ns: counts.running_ns,
                },
            );
        }
    }
}

fn label(text: Option<&String>) -> Option<Label> {
    text.map(|text| text.clone().into())
}

fn json(value: Option<&serde_json::Value>) -> Option<String> {
    value.map(ToString::to_string)
}

fn attributes(mark: &Mark) -> Option<String> {
    (!mark.attrs.is_empty()).then(|| serde_json::Value::Object(mark.attrs.clone()).to_string())
}
