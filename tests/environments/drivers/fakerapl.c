// SPDX-License-Identifier: GPL-2.0
/*
 * Simulated power zones, registered with the kernel's powercap framework under the name of RAPL: a
 * package with cores and memory. Their energy is a function of time. All counters wrap WRAPS_AFTER_NS
 * after the start.
 */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/powercap.h>

/* Range of a processor with a 32-bit counter in units of 2^-14 J. */
#define RANGE_UJ	262143328850ULL
#define WRAPS_AFTER_NS	(4 * NSEC_PER_SEC)

struct domain {
	struct powercap_zone zone;
	const char *name;
	/* Must match tests/kernel/devices/energy.rs. */
	u64 watts;
};

static struct domain package = { .name = "package-0", .watts = 65 };
static struct domain core = { .name = "core", .watts = 40 };
static struct domain dram = { .name = "dram", .watts = 8 };

static struct powercap_control_type *control;
static u64 start;

static int get_energy_uj(struct powercap_zone *zone, u64 *energy)
{
	struct domain *domain = container_of(zone, struct domain, zone);
	u64 uj_per_s = domain->watts * USEC_PER_SEC;
	u64 first = RANGE_UJ - div_u64(uj_per_s * (WRAPS_AFTER_NS / NSEC_PER_USEC), USEC_PER_SEC);
	u64 used = div_u64((ktime_get_ns() - start) * domain->watts, NSEC_PER_USEC);

	div64_u64_rem(first + used, RANGE_UJ, energy);
	return 0;
}

static int get_max_energy_range_uj(struct powercap_zone *zone, u64 *range)
{
	*range = RANGE_UJ;
	return 0;
}

static int release(struct powercap_zone *zone)
{
	return 0;
}

static const struct powercap_zone_ops zone_ops = {
	.get_energy_uj = get_energy_uj,
	.get_max_energy_range_uj = get_max_energy_range_uj,
	.release = release,
};

static int set_limit(struct powercap_zone *zone, int id, u64 value)
{
	return -EPERM;
}

static int get_power_limit_uw(struct powercap_zone *zone, int id, u64 *power)
{
	*power = container_of(zone, struct domain, zone)->watts * USEC_PER_SEC;
	return 0;
}

static int get_time_window_us(struct powercap_zone *zone, int id, u64 *window)
{
	*window = USEC_PER_SEC;
	return 0;
}

static const struct powercap_zone_constraint_ops constraint_ops = {
	.set_power_limit_uw = set_limit,
	.get_power_limit_uw = get_power_limit_uw,
	.set_time_window_us = set_limit,
	.get_time_window_us = get_time_window_us,
};

static int add(struct domain *domain, struct powercap_zone *parent)
{
	struct powercap_zone *zone;

	zone = powercap_register_zone(&domain->zone, control, domain->name, parent, &zone_ops, 1,
				      &constraint_ops);
	return PTR_ERR_OR_ZERO(zone);
}

static int __init fakerapl_init(void)
{
	int error;

	start = ktime_get_ns();
	control = powercap_register_control_type(NULL, "intel-rapl", NULL);
	if (IS_ERR(control))
		return PTR_ERR(control);
	error = add(&package, NULL);
	if (error)
		goto no_package;
	error = add(&core, &package.zone);
	if (error)
		goto no_core;
	error = add(&dram, &package.zone);
	if (error)
		goto no_dram;
	return 0;

no_dram:
	powercap_unregister_zone(control, &core.zone);
no_core:
	powercap_unregister_zone(control, &package.zone);
no_package:
	powercap_unregister_control_type(control);
	return error;
}

static void __exit fakerapl_exit(void)
{
	powercap_unregister_zone(control, &dram.zone);
	powercap_unregister_zone(control, &core.zone);
	powercap_unregister_zone(control, &package.zone);
	powercap_unregister_control_type(control);
}

module_init(fakerapl_init);
module_exit(fakerapl_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Power zones whose energy is a function of time");
