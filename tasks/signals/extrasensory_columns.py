"""The 278 columns of an ExtraSensory file in their order, and the class names that its 51 label columns stand for."""

from __future__ import annotations

_STATS = ("mean", "std", "moment3", "moment4", "percentile25", "percentile50", "percentile75")
_MAGNITUDE = (
    *(f"magnitude_stats:{name}" for name in (*_STATS, "value_entropy", "time_entropy")),
    *(f"magnitude_spectrum:log_energy_band{band}" for band in range(5)),
    "magnitude_spectrum:spectral_entropy",
    "magnitude_autocorrelation:period",
    "magnitude_autocorrelation:normalized_ac",
    *(f"3d:{name}" for name in ("mean_x", "mean_y", "mean_z", "std_x", "std_y", "std_z", "ro_xy", "ro_xz", "ro_yz")),
)
_LAGS = tuple(f"avr_cosine_similarity_lag_range{lag}" for lag in range(5))
_HEADING = tuple(f"{name}_{part}" for part in ("cos", "sin") for name in ("mean", "std", "mom3", "mom4"))
_LOCATION = """num_valid_updates log_latitude_range log_longitude_range min_altitude max_altitude min_speed max_speed
best_horizontal_accuracy best_vertical_accuracy diameter log_diameter"""
_QUICK = "std_lat std_long lat_change long_change mean_abs_lat_deriv mean_abs_long_deriv"
_PHONE = """app_state:is_active app_state:is_inactive app_state:is_background app_state:missing battery_plugged:is_ac
battery_plugged:is_usb battery_plugged:is_wireless battery_plugged:missing battery_state:is_unknown
battery_state:is_unplugged battery_state:is_not_charging battery_state:is_discharging battery_state:is_charging
battery_state:is_full battery_state:missing on_the_phone:is_False on_the_phone:is_True on_the_phone:missing
ringer_mode:is_normal ringer_mode:is_silent_no_vibrate ringer_mode:is_silent_with_vibrate ringer_mode:missing
wifi_status:is_not_reachable wifi_status:is_reachable_via_wifi wifi_status:is_reachable_via_wwan wifi_status:missing"""
_SLOW = "light pressure proximity_cm proximity relative_humidity battery_level screen_brightness temperature_ambient"
_HOURS = "0and6 3and9 6and12 9and15 12and18 15and21 18and24 21and3"

FEATURES = (
    *(f"raw_acc:{name}" for name in _MAGNITUDE),
    *(f"proc_gyro:{name}" for name in _MAGNITUDE),
    *(f"raw_magnet:{name}" for name in (*_MAGNITUDE, *_LAGS)),
    *(f"watch_acceleration:{name}" for name in _MAGNITUDE),
    *(f"watch_acceleration:spectrum:{axis}_log_energy_band{band}" for axis in "xyz" for band in range(5)),
    *(f"watch_acceleration:relative_directions:{name}" for name in _LAGS),
    *(f"watch_heading:{name}" for name in (*_HEADING, "entropy_8bins")),
    *(f"location:{name}" for name in _LOCATION.split()),
    *(f"location_quick_features:{name}" for name in _QUICK.split()),
    *(f"audio_naive:mfcc{number}:{name}" for name in ("mean", "std") for number in range(13)),
    "audio_properties:max_abs_value",
    "audio_properties:normalization_multiplier",
    *(f"discrete:{name}" for name in _PHONE.split()),
    *(f"lf_measurements:{name}" for name in _SLOW.split()),
    *(f"discrete:time_of_day:between{hours}" for hours in _HOURS.split()),
)
"""The 225 features of a minute."""

_LABELS = """LYING_DOWN SITTING FIX_walking FIX_running BICYCLING SLEEPING LAB_WORK IN_CLASS IN_A_MEETING
LOC_main_workplace OR_indoors OR_outside IN_A_CAR ON_A_BUS DRIVE_-_I_M_THE_DRIVER DRIVE_-_I_M_A_PASSENGER LOC_home
FIX_restaurant PHONE_IN_POCKET OR_exercise COOKING SHOPPING STROLLING DRINKING__ALCOHOL_ BATHING_-_SHOWER CLEANING
DOING_LAUNDRY WASHING_DISHES WATCHING_TV SURFING_THE_INTERNET AT_A_PARTY AT_A_BAR LOC_beach SINGING TALKING
COMPUTER_WORK EATING TOILET GROOMING DRESSING AT_THE_GYM STAIRS_-_GOING_UP STAIRS_-_GOING_DOWN ELEVATOR OR_standing
AT_SCHOOL PHONE_IN_HAND PHONE_IN_BAG PHONE_ON_TABLE WITH_CO-WORKERS WITH_FRIENDS"""
LABELS = tuple(_LABELS.split())
"""The 51 label columns without their ``label:``."""

COLUMNS = ("timestamp", *FEATURES, *(f"label:{name}" for name in LABELS), "label_source")

_READABLE = {
    "DRIVE_-_I_M_THE_DRIVER": "driving as the driver",
    "DRIVE_-_I_M_A_PASSENGER": "driving as a passenger",
    "DRINKING__ALCOHOL_": "drinking alcohol",
    "BATHING_-_SHOWER": "bathing or shower",
    "STAIRS_-_GOING_UP": "stairs going up",
    "STAIRS_-_GOING_DOWN": "stairs going down",
    "WATCHING_TV": "watching TV",
}


def _readable(label: str) -> str:
    """Return the class name of a label, without FIX, OR and LOC, which say how its authors corrected it."""
    plain = label.removeprefix("FIX_").removeprefix("OR_").removeprefix("LOC_")
    return _READABLE.get(label, plain.replace("_", " ").lower())


CLASSES = tuple(_readable(label) for label in LABELS)

GROUPS = {
    "posture": ("sitting", "lying down", "standing", "walking", "bicycling", "running"),
    "phone": ("phone on table", "phone in pocket", "phone in hand", "phone in bag"),
    "companion": ("with co-workers", "with friends"),
    "location": (
        *("outside", "indoors", "at school", "at a party", "at the gym", "at a bar", "beach", "home"),
        *("main workplace", "restaurant", "in class", "in a meeting", "on a bus", "in a car", "elevator", "toilet"),
    ),
    "activity": (
        *("cooking", "cleaning", "doing laundry", "washing dishes", "grooming", "dressing", "sleeping", "eating"),
        *("bathing or shower", "lab work", "computer work", "surfing the internet", "exercise", "shopping", "talking"),
        *("driving as the driver", "driving as a passenger", "watching TV", "drinking alcohol", "singing"),
        *("strolling", "stairs going up", "stairs going down"),
    ),
}
"""The categories of FedAlign's partition (KDD 2023, section 5): every class in exactly one."""

TABLE_NAMES = dict(zip(CLASSES, LABELS, strict=True))
"""Class -> its row in the co-occurrence table of FedAlign's authors, which has the label columns' names."""
