-- Any schedule, level of ZeRO and kind of model meet in a plan that is compared with one device.
require "matrix".triples()
